#!/bin/sh
# Drops PySpark's zips from the path of Spark's Python workers: the installed package is the same and is compiled. Also
# a jar without Python in it, which every import would search, and whatever is there twice.
kept=
IFS=:
for part in $PYTHONPATH; do
  case $part in
    */pyspark.zip | */py4j-*-src.zip | */pyspark/jars/spark-core_*.jar | "") continue ;;
  esac
  case :$kept: in
    *":$part:"*) ;;
    *) kept=${kept:+$kept:}$part ;;
  esac
done
export PYTHONPATH="$kept"
# Spark asks this before it starts each kind of worker; a Python needs its own start to answer.
if [ "$#" = 2 ] && [ "$1" = -c ] && [ "$2" = "import sys; print('%d.%d' % sys.version_info[:2])" ]; then
  echo @VERSION@
  exit
fi
exec @PYTHON@ "$@"
