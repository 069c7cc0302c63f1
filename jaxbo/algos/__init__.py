"""One file a method. `base` is what every method offers, `thompson` what FTS and DP-FTS-DE share."""
