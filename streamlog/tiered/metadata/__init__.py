"""Which remote segments there are: the cache of one partition, and the managers that come with this
program. It imports api, model and the ground. Used by the wiring."""
