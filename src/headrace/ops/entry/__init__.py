"""How a step begins and ends: rows of tables, angles of positions, the best token."""
