"""The HTTP API and the server of the page. Needs the extra `serve`."""
