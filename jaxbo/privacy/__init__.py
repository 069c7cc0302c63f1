"""Differential privacy: mechanisms, accountants, ledgers."""
