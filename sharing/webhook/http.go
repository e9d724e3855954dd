package webhook

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	admission "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxBody bounds a review: a pod of at most 1.5 MiB, the API server's limit,
// twice (old and new), and room for escapes.
const maxBody = 8 << 20

// Handler answers admission reviews.
func (c Config) Handler(log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admission.AdmissionReview
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "body is no admission review", http.StatusBadRequest)
			return
		}
		review.Response = c.respond(review.Request)
		if !review.Response.Allowed {
			log.InfoContext(r.Context(), "pod denied", "namespace", review.Request.Namespace, "name", review.Request.Name, "reason", review.Response.Result.Message)
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(&review); err != nil {
			log.DebugContext(r.Context(), "caller left before the answer", "error", err)
		}
	})
}

func (c Config) respond(req *admission.AdmissionRequest) *admission.AdmissionResponse {
	if req.Operation != admission.Create {
		return &admission.AdmissionResponse{UID: req.UID, Allowed: true}
	}
	var pod corev1.Pod
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return refuse(req, http.StatusBadRequest, "object is no pod")
	}
	ops, err := c.Review(&pod)
	var denial Denial
	switch {
	case errors.As(err, &denial):
		return refuse(req, http.StatusForbidden, denial.Error())
	case err != nil:
		return refuse(req, http.StatusInternalServerError, err.Error())
	}
	response := &admission.AdmissionResponse{UID: req.UID, Allowed: true}
	if len(ops) == 0 {
		return response
	}
	patch, err := json.Marshal(ops)
	if err != nil {
		return refuse(req, http.StatusInternalServerError, "encode patch: "+err.Error())
	}
	kind := admission.PatchTypeJSONPatch
	response.Patch, response.PatchType = patch, &kind
	return response
}

func refuse(req *admission.AdmissionRequest, code int32, message string) *admission.AdmissionResponse {
	return &admission.AdmissionResponse{UID: req.UID, Result: &metav1.Status{Message: message, Code: code}}
}
