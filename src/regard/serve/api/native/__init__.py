"""Our own API: one route for each thing that models can do, with what the command line can do as well."""
