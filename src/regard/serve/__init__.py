"""The HTTP API and the page's host. Needs the extra `serve`."""
