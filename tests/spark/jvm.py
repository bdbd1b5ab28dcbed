"""How the JVMs of tests are started.

A test's JVM runs a few queries: what the second compiler makes fast hardly runs, and its threads
and those of the parallel collector took half of the processor time of a session. `java` itself
reads the variable, so that it also reaches the workers and executors that Spark starts.
"""

from __future__ import annotations

QUICK_JVM = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Part of a process's environment."""
