"""What to query next: acquisitions, policies, the search for a maximum, and what was seen so far."""
