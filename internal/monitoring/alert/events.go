package alert

// EventDead is published when an alert could not be delivered and is given up;
// its body is a Delivery.
const EventDead = "alert.dead"
