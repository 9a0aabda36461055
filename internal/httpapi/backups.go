package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/backup"
)

func (s *Server) makeBackup(ctx context.Context, in *struct {
	Body struct {
		Name string `json:"name" maxLength:"63" doc:"Name of its directory below backup.dir"`
	}
},
) (*body[backup.Backup], error) {
	return one(s.Backups.Make(ctx, in.Body.Name))
}

func (s *Server) listBackups(ctx context.Context, _ *struct{}) (*body[items[backup.Backup]], error) {
	all, err := s.Backups.List(ctx)
	return listed(all, "", err)
}

type inBackup struct {
	Name string `path:"name" maxLength:"63" doc:"Identifier, as in the list"`
}

func (s *Server) oneBackup(ctx context.Context, in *inBackup) (*body[backup.Backup], error) {
	return one(s.Backups.One(ctx, in.Name))
}

func (s *Server) stopBackup(ctx context.Context, in *inBackup) (*body[backup.Backup], error) {
	return one(s.Backups.Stop(ctx, in.Name))
}
