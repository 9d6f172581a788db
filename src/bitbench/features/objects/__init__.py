"""Studies in an object store: run into it, queried there, copied from it."""

from bitbench.feature import Command, Feature

FEATURE = Feature(
    name="objects",
    commands=(Command("pull", ".command:pull", "Copy a study from an object store to a folder."),),
    offers={
        "stores": {"s3": ".remote_folder:open_remote_folder"},
        "catalogs": {"s3": ".remote_folder:open_remote_catalog"},
    },
)
