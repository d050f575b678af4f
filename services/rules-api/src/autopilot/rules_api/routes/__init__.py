"""The routes, one module a resource; each holds a table `ROUTES` and its handlers."""
