"""How long things take, each beside something to compare with."""
