"""How runs get done: plan, freeze, schedule, observe. Knows no algorithm and no statistics."""
