from .gluon import trainer

_create_kvstore = trainer._create_kvstore
