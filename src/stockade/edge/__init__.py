"""Edges: the HTTP server, the client SDK and the command line. Each adapts bytes to `Service`."""
