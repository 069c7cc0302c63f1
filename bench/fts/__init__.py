"""Experiments of federated Thompson sampling."""
