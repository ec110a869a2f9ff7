"""Sum the orders of a stream by item, and write the sums into another stream.

MILLSTREAM_URL=redis://127.0.0.1:6400/0 python spark_batch.py
"""

from pyspark.sql import functions as f

import millstream.spark


def main() -> None:
    spark = millstream.spark.session("orders by item")
    orders = (
        spark.read.format("millstream")
        .schema("id string, item string, price double")  # typed columns; a value that does not fit is null
        .option("stream", "orders")
        .load()
    )
    sums = orders.groupBy("item").agg(f.round(f.sum("price"), 2).alias("total"))
    sums.show()
    sums.write.format("millstream").option("stream", "totals").mode("append").save()


if __name__ == "__main__":
    main()
