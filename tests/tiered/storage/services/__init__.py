"""Remote segments in HDFS, Azure Blob Storage and Google Cloud Storage: `make test-remote-storage`.

HDFS is Hadoop's own mini cluster over WebHDFS; Azurite and fake-gcs-server stand for the clouds.
Imports streamlog.tiered and streamlog.testing. Used by nobody.
"""
