"""Which layers, heads and rotary pairs of a checkpoint read far: `ropetool use`."""
