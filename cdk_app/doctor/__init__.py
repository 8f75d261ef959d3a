"""Everything that can be known before money is spent: one finding per check, each with its remedy."""
