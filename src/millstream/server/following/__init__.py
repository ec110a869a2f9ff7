"""The replica's side of the link to the primary: ``link`` the connection, ``taking`` the copy of all data."""
