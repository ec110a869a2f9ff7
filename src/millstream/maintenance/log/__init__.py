"""The log looked into and cut: what it holds, what is damaged, what a cut would lose."""
