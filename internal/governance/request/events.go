package request

// Changed is the event of a request that was made or decided; body: Request.
const Changed = "request.changed"
