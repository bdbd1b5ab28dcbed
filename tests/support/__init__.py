"""Helpers for tests of several folders: real tools and nodes, fakes, views of inner parts."""
