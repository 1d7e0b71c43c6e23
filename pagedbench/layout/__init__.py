"""Where every token lives: block tables, slots, cumulative lengths. Integers only, no torch."""
