"""Values on their way in and out: units, errors, tables, registries, progress bars."""
