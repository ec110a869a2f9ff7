"""What a replica's server does of its link to the primary: ``link`` the connection, ``taking`` the copy of all data."""
