"""The laboratory: what research needs, which the core reaches by name through `ropetool.registry` alone."""
