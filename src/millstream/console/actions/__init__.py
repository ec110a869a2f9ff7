"""The actions: each is one declared function, from which the shell's command and the page's form are made."""
