#!/bin/sh
# Makes .venv-oldest-spark: the packages of .venv, with the oldest PySpark that pyproject.toml allows in front of them.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "${VENV:-$root/.venv}/bin" && pwd)
base=$bin/python
folder=$root/.venv-oldest-spark
oldest=$(sed -n 's/^spark = \["pyspark>=\([0-9.]*\),.*/\1/p' "$root/pyproject.toml")

rm -rf "$folder"
"$base" -m venv --without-pip "$folder"
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$base" -m pip install --quiet --target "$packages" "pyspark==$oldest"
# What is named here comes after the environment's own packages, and its own .pth files are not read
{ echo "$root/src"; "$base" -c 'import pytest, pathlib; print(pathlib.Path(pytest.__file__).parents[1])'; } > "$packages/others.pth"
ln -s "$bin/millstream" "$folder/bin/millstream" # for the servers that tests start
"$folder/bin/python" -c 'import pyspark; print("PySpark", pyspark.__version__)'
