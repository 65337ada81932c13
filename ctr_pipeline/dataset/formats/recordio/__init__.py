"""RecordIO files of delimited lines or `tf.train.Example`s."""
