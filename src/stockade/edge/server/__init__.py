"""The daemon's HTTP face on a unix socket, and its configuration file."""
