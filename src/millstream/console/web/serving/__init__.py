"""How the pages get to a browser: ``guard`` lets requests in, ``app`` makes answers, ``process`` listens."""
