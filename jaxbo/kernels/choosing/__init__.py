"""The choice of the next query: acquisitions, policies, the search for a maximum, and the history."""
