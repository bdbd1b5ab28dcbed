#!/bin/sh
# A local node from the command line: start it with `streamlog dev` in another terminal first.
# STREAMLOG_SERVER names another node than the one on 127.0.0.1:9644.
set -eu
echo 'hello' | streamlog produce greetings
streamlog consume greetings --from earliest --until-end
