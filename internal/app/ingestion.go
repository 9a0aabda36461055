package app

import (
	"context"

	"github.com/falaj-ml/falaj/internal/dataset/child"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion/ingestionsql"
	"github.com/falaj-ml/falaj/internal/dataset/source"
	"github.com/falaj-ml/falaj/internal/dataset/source/files"
	"github.com/falaj-ml/falaj/internal/dataset/source/hdfs"
	"github.com/falaj-ml/falaj/internal/dataset/source/httpjson"
	"github.com/falaj-ml/falaj/internal/dataset/source/kafka"
	"github.com/falaj-ml/falaj/internal/dataset/source/mariadb"
	"github.com/falaj-ml/falaj/internal/dataset/source/nats"
	"github.com/falaj-ml/falaj/internal/dataset/source/postgres"
	"github.com/falaj-ml/falaj/internal/dataset/source/s3"
	"github.com/falaj-ml/falaj/internal/dataset/source/sqlite"
)

// sourceDrivers is the one list of what datasets are ingested from.
func sourceDrivers(l child.Launcher) map[string]source.Driver {
	return map[string]source.Driver{
		"postgres": postgres.Driver{},
		"mariadb":  mariadb.Driver{},
		"sqlite":   sqlite.Driver{Launcher: l},
		"files":    files.Driver{},
		"s3":       s3.Driver{},
		"hdfs":     hdfs.Driver{},
		"http":     httpjson.Driver{},
		"kafka":    kafka.Driver{},
		"nats":     nats.Driver{},
	}
}

func (a *App) openIngestion(context.Context) error {
	a.ingestion = ingestion.New(ingestion.Config{
		DB: a.db, Store: ingestionsql.Store{}, Authorizer: a.authorizer, Datasets: a.datasets, Files: a.files,
		Secrets: a.secrets, Ring: a.keys, Drivers: sourceDrivers(a.launcher()), Access: source.Access{Hosts: a.cfg.Sources.Hosts, Files: a.cfg.Sources.Files}, Zones: a.zones, Log: a.log,
		Parser:    ingestion.ParserOf(a.datasets.Writes),
		ChunkRows: int64(a.cfg.Sources.ChunkRows),
	})
	a.secrets.Register(a.ingestion.SecretUsers)
	a.group.Add(a.ingestion.Background())
	return nil
}
