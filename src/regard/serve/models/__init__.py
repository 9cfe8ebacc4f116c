"""The models of a server: each with an engine that decodes the requests of all clients together."""
