"""What several APIs share: base models, validation, Job and response parts."""
