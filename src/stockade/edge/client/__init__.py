"""The synchronous client SDK: transports, and the objects a program works with."""
