"""How far start-up is: its phases, downloads, and the table printed at its end."""
