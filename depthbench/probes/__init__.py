"""Depth probes: does each layer matter? One probe a file, all on the same tap of reads and writes."""
