"""Which all-reduce for which ranks and bytes: measured into a table, or priced by the simulator."""
