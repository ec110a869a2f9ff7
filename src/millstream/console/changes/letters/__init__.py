"""Changes of dead letters: ``plans`` decides, ``making`` asks the server and carries out."""
