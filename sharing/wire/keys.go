package wire

// Annotations of a node.
const (
	NodeRegister  = "hami.io/node-nvidia-register" // the cards, see Device
	NodeHandshake = "hami.io/node-handshake"       // see Handshake
	NodeMutex     = "hami.io/mutex.lock"           // see NodeLock
	NodeCordon    = "hami.io/device-cordon"        // comma list of card UUIDs closed to new work
)

// Annotations of a pod that the scheduler and the device plugin own. A user
// must not set them. AssignedNode is a label as well.
const (
	AssignedNode = "hami.io/vgpu-node"                // node of the allocation
	AssignedTime = "hami.io/vgpu-time"                // unix seconds
	ToAllocate   = "hami.io/vgpu-devices-to-allocate" // emptied container by container, see PodDevices
	Allocated    = "hami.io/vgpu-devices-allocated"   // permanent, see PodDevices
	BindTime     = "hami.io/bind-time"                // unix seconds
	BindPhase    = "hami.io/bind-phase"               // a Phase
)

// Annotations of a pod that its author may set.
const (
	UseUUID    = "nvidia.com/use-gpuuuid"        // comma list, exact
	AvoidUUID  = "nvidia.com/nouse-gpuuuid"      // comma list, exact
	UseType    = "nvidia.com/use-gputype"        // comma list, substring in any case
	AvoidType  = "nvidia.com/nouse-gputype"      // comma list, substring in any case
	NumaBind   = "nvidia.com/numa-bind"          // "true": all cards of a container on one NUMA node
	Mode       = "nvidia.com/vgpu-mode"          // hami-core, mig or mps
	NodePolicy = "hami.io/node-scheduler-policy" // binpack or spread
	CardPolicy = "hami.io/gpu-scheduler-policy"  // binpack, spread, mutex, …
)

// WebhookLabel on a namespace or pod keeps the webhook away when it is
// WebhookIgnore.
const (
	WebhookLabel  = "hami.io/webhook"
	WebhookIgnore = "ignore"
)

// Extended resources of a container. All but ResourceCount are per vGPU.
const (
	ResourceCount      = "nvidia.com/gpu"               // number of vGPUs
	ResourceMemory     = "nvidia.com/gpumem"            // MiB
	ResourceMemPercent = "nvidia.com/gpumem-percentage" // 1 to 100
	ResourceCores      = "nvidia.com/gpucores"          // percent, 100 is exclusive
	ResourcePriority   = "nvidia.com/priority"          // 0 high, 1 low
)

// Environment that HAMi-core reads inside a container. The memory limit has one
// variable per card, so MemoryLimitEnv makes the name.
const (
	EnvVisibleDevices = "NVIDIA_VISIBLE_DEVICES"
	EnvCoreLimit      = "CUDA_DEVICE_SM_LIMIT"
	EnvSharedCache    = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
	EnvTaskPriority   = "CUDA_TASK_PRIORITY"
	EnvDisableControl = "CUDA_DISABLE_CONTROL"
	EnvLogLevel       = "LIBCUDA_LOG_LEVEL"
)

// Scheduler names that mean "the sharing scheduler". Pods written for HAMi name
// the second.
const (
	SchedulerName     = "firstlight-scheduler"
	HAMiSchedulerName = "hami-scheduler"
)

// Vendor is the type field of an NVIDIA vGPU in a pod's annotation. It is the
// vendor's common word, not the card's model.
const Vendor = "NVIDIA"

// Operating modes of a card.
const (
	ModeCore = "hami-core" // limits kept by the library inside the container
	ModeMIG  = "mig"
	ModeMPS  = "mps"
)

// Phase is the value of BindPhase: where a pod stands between bind and the end
// of Allocate.
type Phase string

// The phases.
const (
	PhaseAllocating Phase = "allocating" // bound, containers not all served
	PhaseSuccess    Phase = "success"    // every container has its devices
	PhaseFailed     Phase = "failed"     // bind or Allocate gave up
)
