"""Differential privacy: mechanisms, accountants and ledgers, and what an audit concludes."""
