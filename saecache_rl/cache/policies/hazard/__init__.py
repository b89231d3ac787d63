"""The project's own policy: an online hazard of the time to next use, Gittins' index of it, and a guard.

`docs/adaptive.md` explains it. `policy` joins the parts: `layout` (its state), `entries` (every block it knows of),
`features` and `segments` (what is learned from), `learner` and `table` (the hazards), `index` (what a block is worth),
`guard` (falls back to LRU), `oracle` (what more information would be worth).
"""
