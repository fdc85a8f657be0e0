"""The process that keeps a lake fresh by itself: it leads the lake, asks the policy what to do, and does it."""
