"""`make demo`: the main job on real input, from webhook, schedule and hand to finished work, and what is checked of it."""
