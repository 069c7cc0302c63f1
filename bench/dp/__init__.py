"""Experiments of differentially private federated Thompson sampling."""
