// Package schema is the schema of the whole database.
package schema

import (
	"github.com/falaj-ml/falaj/internal/compute/computesql"
	"github.com/falaj-ml/falaj/internal/dataset/datasetsql"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion/ingestionsql"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage/openlineagesql"
	"github.com/falaj-ml/falaj/internal/environment/environmentsql"
	"github.com/falaj-ml/falaj/internal/feature/featuresql"
	"github.com/falaj-ml/falaj/internal/governance/audit/auditsql"
	"github.com/falaj-ml/falaj/internal/governance/identity/identitysql"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy/policysql"
	"github.com/falaj-ml/falaj/internal/governance/privacy/privacysql"
	"github.com/falaj-ml/falaj/internal/governance/project/projectsql"
	"github.com/falaj-ml/falaj/internal/governance/request/requestsql"
	"github.com/falaj-ml/falaj/internal/governance/residency/residencysql"
	"github.com/falaj-ml/falaj/internal/governance/secrets/secretssql"
	"github.com/falaj-ml/falaj/internal/monitoring/alert/alertsql"
	"github.com/falaj-ml/falaj/internal/monitoring/label/labelsql"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook/webhooksql"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/serving/gateway/gatewaysql"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
	"github.com/falaj-ml/falaj/internal/tuning/tuningsql"
)

// Migrations are those of all domains, in the order in which data flows.
var Migrations = []store.Migrations{
	identitysql.Migrations, projectsql.Migrations, policysql.Migrations, residencysql.Migrations, requestsql.Migrations, keyssql.Migrations, secretssql.Migrations, privacysql.Migrations, auditsql.Migrations,
	computesql.Migrations, environmentsql.Migrations, datasetsql.Migrations, ingestionsql.Migrations, openlineagesql.Migrations, featuresql.Migrations,
	trackingsql.Migrations, trainingsql.Migrations, tuningsql.Migrations, registrysql.Migrations, servingsql.Migrations, gatewaysql.Migrations, labelsql.Migrations, monitoringsql.Migrations, alertsql.Migrations, webhooksql.Migrations,
}
