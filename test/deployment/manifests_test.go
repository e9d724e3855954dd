package deployment

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestManifestsAreStrict decodes every manifest that we ship, and that the tests
// apply, as the API server's strict mode does: no unknown field, none twice.
func TestManifestsAreStrict(t *testing.T) {
	files, err := filepath.Glob("../../deploy/[ls]*/*.yaml") // launcher, sharing
	if err != nil || len(files) == 0 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, file := range append(files, "roles.yaml", "runtimeclass.yaml") {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(content)))
		buffer := make([]byte, len(content))
		for {
			n, err := documents.Read(buffer)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if _, _, err := decoder.Decode(buffer[:n], nil, nil); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}
